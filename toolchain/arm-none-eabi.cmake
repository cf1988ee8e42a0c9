# Cortex-M7 with its single-precision float unit, no operating system, by Debian's
# gcc-arm-none-eabi.
#
# -Wno-format: uint32_t is `unsigned long` there, as long as unsigned int but another type, and
# lk_format reads both alike. -fno-short-enums: tables are as large as on every other target.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR cortex-m7)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_C_FLAGS_INIT
    "-mcpu=cortex-m7 -mthumb -mfpu=fpv5-sp-d16 -mfloat-abi=hard -ffreestanding -Wno-format \
-fno-short-enums")
set(CMAKE_EXE_LINKER_FLAGS_INIT -nostdlib)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
