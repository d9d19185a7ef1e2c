"""Sessions: groups that arrive in several requests, and the predictions that wait for them."""
