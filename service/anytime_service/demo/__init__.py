"""A demonstration on real work: scikit-learn's handwritten digits, feature groups from cheap to dear, one deadline."""
