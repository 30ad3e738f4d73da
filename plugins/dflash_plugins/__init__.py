"""The built-in strategies, registered exactly as a third party registers its own."""
