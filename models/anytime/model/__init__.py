"""The trained model: coefficients of every prefix, manifest, file and exports."""
