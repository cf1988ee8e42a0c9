# Runs a command and compares what it prints and how it ends with what is expected:
#   cmake -DLOG=file [-DDIGEST=..] [-DSTATE_HASH=..] [-DACCURACY=..] [-DACCURACY_MIN=..] [-DEXIT=..]
#         -P RunLockstep.cmake -- command argument...
# lockstep_add_run (LockstepRuns.cmake) writes such lines. The last line of each kind counts.
cmake_minimum_required(VERSION 3.25)

# The result lines of `lockstep train`: the one place that knows them.
set(line_DIGEST "digest ([0-9a-f]+)")
set(line_STATE_HASH "state_hash ([0-9a-f]+)")
set(line_ACCURACY "test_accuracy ([0-9.]+)")

set(command)
set(behind_dashes FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
    if(behind_dashes)
        string(REPLACE ";" "\\;" argument "${CMAKE_ARGV${i}}")
        list(APPEND command "${argument}")
    elseif(CMAKE_ARGV${i} STREQUAL "--")
        set(behind_dashes TRUE)
    endif()
endforeach()
if(NOT command OR NOT DEFINED LOG)
    message(FATAL_ERROR "usage: cmake -DLOG=file ... -P RunLockstep.cmake -- command argument...")
endif()
if(NOT DEFINED EXIT)
    set(EXIT 0)
endif()

get_filename_component(log_dir ${LOG} DIRECTORY)
file(MAKE_DIRECTORY ${log_dir})
execute_process(COMMAND ${command} RESULT_VARIABLE found_EXIT OUTPUT_VARIABLE output
                ERROR_VARIABLE errors ECHO_OUTPUT_VARIABLE ECHO_ERROR_VARIABLE)
file(WRITE ${LOG} "${output}${errors}")

set(wrong)
if(NOT found_EXIT STREQUAL EXIT)
    string(APPEND wrong "\n  exit code: found ${found_EXIT}, wanted ${EXIT}")
endif()
# found_KIND: the value of the last line of that kind, or "no such line".
string(REPLACE "\n" "\n\n" lines_apart "\n${output}")  # a match eats the next one's newline
foreach(kind DIGEST STATE_HASH ACCURACY)
    set(found_${kind} "no such line")
    string(REGEX MATCHALL "(^|\n)${line_${kind}}%?\r?(\n|$)" lines "${lines_apart}")
    if(lines)
        list(GET lines -1 line)
        string(REGEX MATCH "${line_${kind}}" line "${line}")
        set(found_${kind} "${CMAKE_MATCH_1}")
    endif()
    if(DEFINED ${kind} AND NOT "${found_${kind}}" STREQUAL "${${kind}}")
        string(APPEND wrong "\n  ${kind}: found ${found_${kind}}, wanted ${${kind}}")
    endif()
endforeach()
if(DEFINED ACCURACY_MIN AND NOT "${found_ACCURACY}" GREATER_EQUAL "${ACCURACY_MIN}")
    string(APPEND wrong "\n  ACCURACY: found ${found_ACCURACY}, wanted at least ${ACCURACY_MIN}")
endif()
if(wrong)
    message(FATAL_ERROR "the run is not as expected:${wrong}\n  its output: ${LOG}")
endif()
