"""A loaded server: how many tokens a second the embedded engine gives with each way to price a draft."""
