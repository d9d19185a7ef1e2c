"""A demonstration on real data: scikit-learn's handwritten digits, feature groups of increasing cost, deadlines."""
