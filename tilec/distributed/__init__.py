"""Programs over several devices: what their indices say of where tensors lie."""
