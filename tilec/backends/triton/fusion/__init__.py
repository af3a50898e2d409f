"""Which statements share a kernel, and which launches become one."""
