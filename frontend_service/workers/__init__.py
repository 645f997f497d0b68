"""The workers as the services see them, and the links to them. No other folder of the frontend knows the transport."""
