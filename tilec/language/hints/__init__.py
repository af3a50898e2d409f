"""What people write who come from another language, and what to write instead: the texts behind the diagnostics."""
