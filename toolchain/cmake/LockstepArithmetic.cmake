# Refuses, while configuring, a compiler, target or flag that cannot give the arithmetic's bits, and
# says why. What can be asked of the compiler is asked in arithmetic_probe.c.

# Flags in which somebody else's choice would decide. Ours come behind them on the command line, but
# some of these also change how a program starts (flush-to-zero), and none is meant by a user here.
set(flags "${CMAKE_C_FLAGS} ${CMAKE_EXE_LINKER_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS}")
foreach(type IN LISTS CMAKE_BUILD_TYPE CMAKE_CONFIGURATION_TYPES)  # one, or those to choose from
    string(TOUPPER "${type}" type)
    string(APPEND flags " ${CMAKE_C_FLAGS_${type}} ${CMAKE_EXE_LINKER_FLAGS_${type}}"
                        " ${CMAKE_SHARED_LINKER_FLAGS_${type}}")
endforeach()
foreach(pair
        "-Ofast|-ffast-math|-ffp-model=fast=lets the compiler reorder sums, and flushes subnormals"
        "-funsafe-math-optimizations|-fassociative-math=lets the compiler reorder sums"
        "-freciprocal-math|-fapprox-func=replaces a division or a function by another number"
        "-ffinite-math-only|-fno-signed-zeros=lets it drop infinity, NaN or a zero's sign"
        "-ffp-contract=(fast|on)=lets the compiler decide which products are rounded"
        "-mdaz-ftz|-fdenormal-fp-math(-f32)?=[^ ]*=flushes subnormals to zero"
        "-mfpmath=(387|sse,387|387,sse|both)=computes with excess precision (x87)"
        "-mno-ieee=leaves IEEE arithmetic")
    string(REGEX MATCH "^(.*)=([^=]*)$" pair "${pair}")
    set(pattern "${CMAKE_MATCH_1}")
    set(reason "${CMAKE_MATCH_2}")
    if(" ${flags} " MATCHES " (${pattern}) ")
        message(FATAL_ERROR "Lockstep refuses the flag ${CMAKE_MATCH_1}: it ${reason}, so the "
                "trained weights would not be those of other machines. Take it out of "
                "CMAKE_C_FLAGS, CFLAGS or LDFLAGS")
    endif()
endforeach()

# Compiled for the target; run too where that is possible, since start-up code or the environment
# may have changed the processor's mode.
set(probe ${CMAKE_CURRENT_LIST_DIR}/arithmetic_probe.c)
set(CMAKE_TRY_COMPILE_CONFIGURATION ${CMAKE_BUILD_TYPE})
unset(LOCKSTEP_PROBE_COMPILED CACHE)
unset(LOCKSTEP_PROBE_RAN CACHE)
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR OR
   CMAKE_TRY_COMPILE_TARGET_TYPE STREQUAL "STATIC_LIBRARY")
    try_compile(LOCKSTEP_PROBE_COMPILED ${PROJECT_BINARY_DIR}/arithmetic ${probe}
                OUTPUT_VARIABLE output)
    set(LOCKSTEP_PROBE_RAN 0)
else()
    try_run(LOCKSTEP_PROBE_RAN LOCKSTEP_PROBE_COMPILED ${PROJECT_BINARY_DIR}/arithmetic ${probe}
            COMPILE_OUTPUT_VARIABLE output)
endif()
if(NOT LOCKSTEP_PROBE_COMPILED)
    string(REGEX MATCH "Lockstep: ([^\n\"]*)" reason "${output}")
    if(reason)
        message(FATAL_ERROR "Lockstep refuses this target: ${CMAKE_MATCH_1}")
    endif()
    message(FATAL_ERROR "Lockstep: the compiler ${CMAKE_C_COMPILER} cannot compile a few lines of "
            "C11:\n${output}")
endif()
set(reasons
    "subnormal numbers are flushed to zero"
    "it does not round to nearest, ties to even"
    "a product and a sum are rounded once instead of twice"
    "sums are kept in more than fp32")
if(NOT LOCKSTEP_PROBE_RAN EQUAL 0)
    set(reason "its probe ended with ${LOCKSTEP_PROBE_RAN}")
    if(LOCKSTEP_PROBE_RAN MATCHES "^[1-4]$")
        math(EXPR index "${LOCKSTEP_PROBE_RAN} - 1")
        list(GET reasons ${index} reason)
    endif()
    message(FATAL_ERROR "Lockstep refuses this target: a program built with these flags was run, "
            "and ${reason}")
endif()
