"""What is checked, what was found, and what happens when a site goes down."""
