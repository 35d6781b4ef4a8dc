"""django_wheelbeat.database.opening"""
