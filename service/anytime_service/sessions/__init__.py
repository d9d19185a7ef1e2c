"""Sessions: groups collected over several requests, and the predictions that wait for them."""
