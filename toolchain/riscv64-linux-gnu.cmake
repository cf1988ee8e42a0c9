# RISC-V 64 (rv64gc) under Linux, by Debian's gcc-riscv64-linux-gnu, or by clang with that package's
# libraries (-DLOCKSTEP_CROSS_CLANG=ON). Statically linked: qemu-user then needs no system root.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(LOCKSTEP_CROSS_TRIPLE riscv64-linux-gnu)
set(LOCKSTEP_CROSS_EMULATOR qemu-riscv64)
include(${CMAKE_CURRENT_LIST_DIR}/cross-linux.cmake)
