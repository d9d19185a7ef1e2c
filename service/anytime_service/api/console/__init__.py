"""The console: a page that shows a model's curve and a prediction that improves as groups arrive."""
