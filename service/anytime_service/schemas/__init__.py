"""What comes in and what goes out: JSON and MessagePack, as typed structures."""
