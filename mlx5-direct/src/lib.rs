//! mlx5-direct
