//! mlx5-emu
