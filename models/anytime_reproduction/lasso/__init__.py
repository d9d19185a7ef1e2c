"""The baseline of the UAI paper, Sparse: the path of the cost-weighted Group Lasso."""
