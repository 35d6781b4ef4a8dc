"""A beat, or a part of one, that the test drives step by step."""
