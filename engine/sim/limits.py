"""Settings of an engine that no machine has. A scheduler lists its blocks and rows: these are made in seconds."""

LARGEST_SETTINGS = {
    "max_num_seqs": 100_000,
    "max_num_batched_tokens": 100_000_000,
    "block_size": 1_000_000,
    "num_device_blocks": 10_000_000,
    "num_host_blocks": 10_000_000,
    "max_model_len": 100_000_000,
}
