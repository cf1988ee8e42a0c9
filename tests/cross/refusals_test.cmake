# Targets and flags that cannot keep the bits are refused while configuring, each with its reason;
# and the same command without them is not. So are choices that cannot be had.
#   cmake -DSOURCE_DIR=.. -DWORK_DIR=.. -DGENERATOR=.. -P refusals_test.cmake
cmake_minimum_required(VERSION 3.25)
set(failed FALSE)

# configure(WANTED argument..): WANTED is a part of the reason, or "" for a target that is fine.
function(configure wanted)
    file(REMOVE_RECURSE ${WORK_DIR})
    execute_process(
        COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR} -G ${GENERATOR}
                -DLOCKSTEP_PROGRAM=OFF -DLOCKSTEP_CUDA=OFF ${ARGN}
        RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    string(REGEX REPLACE "[ \n]+" " " flat "${output}")
    string(JOIN " " what ${ARGN})
    string(FIND "${flat}" "${wanted}" at)
    if(wanted STREQUAL "" AND result EQUAL 0)
        message(STATUS "accepted: ${what}")
    elseif(NOT wanted STREQUAL "" AND NOT result EQUAL 0 AND at GREATER_EQUAL 0)
        message(STATUS "refused (${wanted}): ${what}")
    else()
        message("WRONG: ${what}\n  ended with ${result}, wanted \"${wanted}\":\n${output}")
        set(failed TRUE PARENT_SCOPE)
    endif()
endfunction()

# What a choice means is never guessed, and what was asked for is never left out in silence.
configure("LOCKSTEP_MPI is \"NO\", wanted AUTO, ON or OFF" -DLOCKSTEP_MPI=NO)
configure("LOCKSTEP_CUDA is \"on\", wanted AUTO, ON or OFF" -DLOCKSTEP_CUDA=on)
configure("LOCKSTEP_NCCL=ON, but without CUDA" -DLOCKSTEP_NCCL=ON)
configure("LOCKSTEP_MPI=ON, but LOCKSTEP_PROGRAM=OFF" -DLOCKSTEP_MPI=ON)

set(gcc -DCMAKE_C_COMPILER=gcc)
# clang compiles for any machine; nothing is linked, so no library of that machine is needed.
set(clang -DCMAKE_C_COMPILER=clang -DCMAKE_SYSTEM_NAME=Linux
          -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY)

find_program(HAVE_GCC gcc)
find_program(HAVE_CLANG clang)
if(HAVE_GCC)
    configure("" ${gcc})
    configure("" ${gcc} "-DCMAKE_C_FLAGS=-march=x86-64-v3")
    configure("flag -ffast-math" ${gcc} "-DCMAKE_C_FLAGS=-g -ffast-math")
    configure("flag -Ofast" ${gcc} -DCMAKE_BUILD_TYPE=Release "-DCMAKE_C_FLAGS_RELEASE=-Ofast")
    configure("flag -ffast-math" ${gcc} "-DCMAKE_EXE_LINKER_FLAGS=-ffast-math")
    configure("lets the compiler reorder sums" ${gcc} "-DCMAKE_C_FLAGS=-fassociative-math")
    configure("decide which products are rounded" ${gcc} "-DCMAKE_C_FLAGS=-ffp-contract=fast")
    configure("excess precision" ${gcc} "-DCMAKE_C_FLAGS=-mfpmath=387")
    if(GENERATOR MATCHES "^Ninja")  # several kinds of build in one directory: each is looked at
        set(GENERATOR "Ninja Multi-Config")
        configure("" ${gcc})
        configure("flag -Ofast" ${gcc} "-DCMAKE_C_FLAGS_RELEASE=-Ofast")
        configure("flag -ffast-math" ${gcc}
                  "-DCMAKE_SHARED_LINKER_FLAGS_DEBUG=-ffast-math")
        set(GENERATOR "Ninja")
    endif()
    # Not by its name, but by what start-up code does: a run finds out.
    file(WRITE ${WORK_DIR}_flush.c "__attribute__((constructor)) static void flush(void)
        { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }")
    execute_process(COMMAND gcc -c ${WORK_DIR}_flush.c -o ${WORK_DIR}_flush.o
                    RESULT_VARIABLE no_sse)
    if(no_sse EQUAL 0)
        configure("subnormal numbers are flushed" ${gcc}
                  "-DCMAKE_EXE_LINKER_FLAGS=${WORK_DIR}_flush.o")
    endif()
endif()
if(HAVE_CLANG)
    configure("" ${clang} -DCMAKE_SYSTEM_PROCESSOR=aarch64
              -DCMAKE_C_COMPILER_TARGET=aarch64-linux-gnu)
    configure("big-endian" ${clang} -DCMAKE_SYSTEM_PROCESSOR=s390x
              -DCMAKE_C_COMPILER_TARGET=s390x-linux-gnu)
    configure("big-endian" ${clang} -DCMAKE_SYSTEM_PROCESSOR=aarch64_be
              -DCMAKE_C_COMPILER_TARGET=aarch64_be-linux-gnu)
    configure("excess precision" ${clang} -DCMAKE_SYSTEM_PROCESSOR=i586
              -DCMAKE_C_COMPILER_TARGET=i586-linux-gnu)
    configure("flushes to zero" ${clang} -DCMAKE_SYSTEM_PROCESSOR=armv7
              -DCMAKE_C_COMPILER_TARGET=armv7-linux-gnueabihf "-DCMAKE_C_FLAGS=-mfpu=neon")
    configure("flushes subnormals" ${clang} -DCMAKE_SYSTEM_PROCESSOR=aarch64
              -DCMAKE_C_COMPILER_TARGET=aarch64-linux-gnu
              "-DCMAKE_C_FLAGS=-fdenormal-fp-math=positive-zero")
endif()
file(REMOVE_RECURSE ${WORK_DIR})
if(failed)
    message(FATAL_ERROR "see the lines that begin with WRONG")
endif()
