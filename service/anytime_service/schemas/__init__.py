"""Wire types: requests, messages, answers and problems, in JSON and MessagePack."""
