"""The benchmarks that asv runs for each commit (`asv.conf.json`)."""
