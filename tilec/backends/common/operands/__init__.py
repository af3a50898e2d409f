"""How products are written before they are differentiated."""
