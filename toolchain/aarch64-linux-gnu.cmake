# AArch64 under Linux, by Debian's gcc-aarch64-linux-gnu, or by clang with that package's libraries
# (-DLOCKSTEP_CROSS_CLANG=ON). Statically linked: qemu-user then needs no system root.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(LOCKSTEP_CROSS_TRIPLE aarch64-linux-gnu)
set(LOCKSTEP_CROSS_EMULATOR qemu-aarch64)
include(${CMAKE_CURRENT_LIST_DIR}/cross-linux.cmake)
