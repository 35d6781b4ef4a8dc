"""django_wheelbeat.monitors"""
