"""Products through TMA and wgmma, in Gluon."""
