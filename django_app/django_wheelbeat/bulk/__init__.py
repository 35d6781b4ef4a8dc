"""django_wheelbeat.bulk.chunk"""
