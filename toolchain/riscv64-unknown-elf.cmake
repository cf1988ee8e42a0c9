# RISC-V 64 without any float unit (rv64imac), no operating system assumed, by Debian's
# gcc-riscv64-unknown-elf: every float operation is integer code of libgcc's or, for fma and sqrt,
# of the core's. No C library; qemu-riscv64 runs what apps/baremetal/syscalls.c starts.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(CMAKE_C_COMPILER riscv64-unknown-elf-gcc)
set(CMAKE_C_FLAGS_INIT "-march=rv64imac -mabi=lp64 -mcmodel=medany -ffreestanding")
set(CMAKE_EXE_LINKER_FLAGS_INIT -nostdlib)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
find_program(LOCKSTEP_CROSS_EMULATOR_PATH qemu-riscv64)
if(LOCKSTEP_CROSS_EMULATOR_PATH)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${LOCKSTEP_CROSS_EMULATOR_PATH})
endif()
