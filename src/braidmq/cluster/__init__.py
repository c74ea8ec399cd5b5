"""What a cluster agrees on: the metadata store."""
