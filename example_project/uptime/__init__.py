"""Checks of sites, their results, and incidents when a site goes down."""
