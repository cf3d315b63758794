"""C sources of the CPU kernels and the code that compiles and loads them."""
