"""What tests share: real processes, claims, servers as fixtures; by folder: lanes, change log, engine, beat, site."""
