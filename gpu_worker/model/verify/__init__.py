"""The gates of a load: what runs packed must equal the model's own run, one text at a time."""
