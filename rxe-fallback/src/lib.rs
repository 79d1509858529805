//! rxe-fallback
