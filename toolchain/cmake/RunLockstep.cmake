# Runs a command and compares what it prints and how it ends with what is expected:
#   cmake -DLOG=file [-DDIGEST=..] [-DSTATE_HASH=..] [-DACCURACY=..] [-DACCURACY_MIN=..] [-DEXIT=..]
#         [-DLIST=file -DNAME=test] -P RunLockstep.cmake -- command argument...
# lockstep_add_run (LockstepRuns.cmake) writes such lines. The last line of each kind counts.
#
# Accuracy, steps/s and bytes of the arena are handed to CTest as measurements, which a dashboard
# shows. With LOCKSTEP_ACCEPT=1 in the environment a digest or state hash that differs is written
# into LIST, where the expected one stands: in the call lockstep_add_run(NAME test ..), or where
# alone it does.
cmake_minimum_required(VERSION 3.25)

# The result lines of `lockstep train`: the one place that knows them.
set(line_DIGEST "digest ([0-9a-f]+)")
set(line_STATE_HASH "state_hash ([0-9a-f]+)")
set(line_ACCURACY "test_accuracy ([0-9.]+)")
set(line_SPEED "trained [0-9]+ steps in [0-9.]+ s: ([0-9.]+) steps/s, [0-9]+ images/s")
set(line_BYTES "arena ([0-9]+) bytes, [^\n]*")

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

# The call that adds test `name`, up to its first ")"; empty: there is none in `text`.
function(find_call text name out)
    string(REGEX REPLACE "([][+.*()^$?|\\])" "\\\\\\1" name "${name}")
    set(${out} "" PARENT_SCOPE)
    string(FIND "${text}" "lockstep_add_run" at)
    while(NOT at EQUAL -1)
        string(SUBSTRING "${text}" ${at} -1 text)
        string(FIND "${text}" ")" end)
        string(SUBSTRING "${text}" 0 ${end} call)
        if(call MATCHES "[( \t\n]NAME[ \t\n]+\"?${name}\"?([ \t\n]|$)")
            set(${out} "${call}" PARENT_SCOPE)
            return()
        endif()
        string(SUBSTRING "${text}" 1 -1 text)
        string(FIND "${text}" "lockstep_add_run" at)
    endwhile()
endfunction()

# How often `what` stands in `text`.
function(count_in text what out)
    string(LENGTH "${what}" one)
    string(LENGTH "${text}" before)
    string(REPLACE "${what}" "" text "${text}")
    string(LENGTH "${text}" after)
    math(EXPR count "(${before} - ${after}) / ${one}")
    set(${out} ${count} PARENT_SCOPE)
endfunction()

get_filename_component(log_dir ${LOG} DIRECTORY)
file(MAKE_DIRECTORY ${log_dir})
execute_process(COMMAND ${command} RESULT_VARIABLE found_EXIT OUTPUT_VARIABLE output
                ERROR_VARIABLE errors ECHO_OUTPUT_VARIABLE ECHO_ERROR_VARIABLE)
file(WRITE ${LOG} "${output}${errors}")

set(wrong)
set(changed)  # what differs and was asked to be accepted
if(NOT found_EXIT STREQUAL EXIT)
    string(APPEND wrong "\n  exit code: found ${found_EXIT}, wanted ${EXIT}")
endif()
# found_KIND: the value of the last line of that kind, or "no such line".
string(REPLACE "\n" "\n\n" lines_apart "\n${output}")  # a match eats the next one's newline
string(REPLACE ";" "," lines_apart "${lines_apart}")  # no list of lines
foreach(kind DIGEST STATE_HASH ACCURACY SPEED BYTES)
    set(found_${kind} "no such line")
    string(REGEX MATCHALL "(^|\n)${line_${kind}}%?\r?(\n|$)" lines "${lines_apart}")
    if(lines)
        list(GET lines -1 line)
        string(REGEX MATCH "${line_${kind}}" line "${line}")
        set(found_${kind} "${CMAKE_MATCH_1}")
    endif()
    if(kind MATCHES "^(SPEED|BYTES)$")
        continue()
    endif()
    if(NOT DEFINED ${kind} OR "${found_${kind}}" STREQUAL "${${kind}}")
        continue()
    endif()
    if("$ENV{LOCKSTEP_ACCEPT}" STREQUAL "1" AND kind MATCHES "^(DIGEST|STATE_HASH)$" AND
       found_${kind} MATCHES "^[0-9a-f]+$")
        list(APPEND changed ${kind})
    else()
        string(APPEND wrong "\n  ${kind}: found ${found_${kind}}, wanted ${${kind}}")
    endif()
endforeach()
if(DEFINED ACCURACY_MIN AND NOT "${found_ACCURACY}" GREATER_EQUAL "${ACCURACY_MIN}")
    string(APPEND wrong "\n  ACCURACY: found ${found_ACCURACY}, wanted at least ${ACCURACY_MIN}")
endif()
# Where nothing else is wrong. Tests may run side by side: one at a time reads and writes the list.
if(changed AND DEFINED LIST)
    get_filename_component(logs "${LOG}" DIRECTORY)
    file(LOCK "${logs}/lockstep-accept.lock" GUARD PROCESS TIMEOUT 60)
endif()
foreach(kind IN LISTS changed)
    set(text "")
    if(DEFINED LIST AND EXISTS "${LIST}")
        file(READ "${LIST}" text)
    endif()
    set(old "${${kind}}")
    set(new "${found_${kind}}")
    find_call("${text}" "${NAME}" call)
    count_in("${call}" "${old}" in_call)
    count_in("${text}" "${old}" in_text)
    string(FIND "${text}" "${new}" there)
    if(in_text EQUAL 0 AND NOT there EQUAL -1)
        # Another test with the same expectation has written it.
        message("accepted: ${kind} ${new} stands in ${LIST}")
    elseif(in_text EQUAL 0)
        string(APPEND wrong "\n  ${kind}: ${old} does not stand in \"${LIST}\": write ${new} where "
               "it comes from")
    elseif(in_call EQUAL 0 AND in_text GREATER 1)
        string(APPEND wrong "\n  ${kind}: ${old} stands in ${in_text} places of \"${LIST}\", none "
               "in a call lockstep_add_run(NAME ${NAME} ..): write ${new} where this test takes it "
               "from")
    elseif(NOT wrong)
        if(in_call GREATER 0)
            string(REPLACE "${old}" "${new}" changed_call "${call}")
            string(REPLACE "${call}" "${changed_call}" text "${text}")
        else()
            string(REPLACE "${old}" "${new}" text "${text}")
        endif()
        file(WRITE "${LIST}" "${text}")
        message("accepted: ${kind} ${new} in ${LIST}")
    endif()
endforeach()

# CTest takes these out of what a test prints.
foreach(pair "ACCURACY=accuracy, per cent" "SPEED=steps per second" "BYTES=arena bytes")
    string(REGEX REPLACE "=.*" "" kind "${pair}")
    string(REGEX REPLACE "^[A-Z]+=" "" name "${pair}")
    if(found_${kind} MATCHES "^[0-9.]+$")
        set(line "<CTestMeasurement type=\"numeric/double\" name=\"${name}\">")
        string(APPEND line "${found_${kind}}</CTestMeasurement>")
        execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${line}")  # message() would wrap it
    endif()
endforeach()
if(wrong)
    message(FATAL_ERROR "the run is not as expected:${wrong}\n  its output: ${LOG}")
endif()
