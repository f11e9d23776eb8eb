"""llama.cpp's compute graphs, as far as they decide how much memory one microbatch takes."""
