"""The experiments of the papers, reproduced: `anytime reproduce`."""
