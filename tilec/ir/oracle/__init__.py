"""The parts of the oracle, `tilec.ir.evaluate`. They share no code with the passes and backends that it judges."""
