"""Values that kernels compute again where they read them, at neighbours."""
