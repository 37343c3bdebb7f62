"""What smolagents' tests need and its source distribution does not ship, written anew here."""
