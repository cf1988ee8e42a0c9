# Tests RunLockstep.cmake, which judges training runs, with commands whose output is known: what is
# as expected passes, everything else fails.
#   cmake -DSCRIPT= -DWORK_DIR= -P runs_test.cmake
cmake_minimum_required(VERSION 3.25)

file(MAKE_DIRECTORY ${WORK_DIR})
set(output "epoch 1\\ndigest 00ff\\nstate_hash aa\\ntest_accuracy 97.5%%\\nthe digest 99\\n")
string(APPEND output "arena 1224768 bytes, locked in memory; 420 parameters\\n"
       "trained 20 steps in 0.306 s: 65.3 steps/s, 16720 images/s\\n")
string(APPEND output "digest 12ab\\ndigest 34cd\\nstate_hash bb\\ntest_accuracy 98.52\\n")

function(expect outcome)
    execute_process(COMMAND ${CMAKE_COMMAND} -DLOG=${WORK_DIR}/run.log ${ARGN} -P ${SCRIPT}
                            -- printf "${output}"
                    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if((outcome STREQUAL "pass") EQUAL (result EQUAL 0))
        return()
    endif()
    message(FATAL_ERROR "${ARGN}: wanted to ${outcome}, ended with ${result}:\n${text}")
endfunction()

expect(pass)
expect(pass -DDIGEST=34cd -DSTATE_HASH=bb -DACCURACY=98.52 -DACCURACY_MIN=98.5 -DEXIT=0)
expect(fail -DDIGEST=12ab)
expect(fail -DDIGEST=00ff)
expect(fail -DDIGEST=34c)
expect(fail -DSTATE_HASH=aa)
expect(fail -DACCURACY=98.5)
expect(fail -DACCURACY_MIN=98.53)
expect(fail -DEXIT=78)

# LOCKSTEP_ACCEPT=1: what differs is written where the expected value stands, and nowhere else.
function(expect_list text)
    file(READ ${WORK_DIR}/list.cmake found)
    if(NOT found STREQUAL text)
        message(FATAL_ERROR "the list: found ${found}, wanted ${text}")
    endif()
endfunction()
function(accept name)  # outcome definitions..
    expect(${ARGN} -DNAME=${name} -DLIST=${WORK_DIR}/list.cmake)
endfunction()
string(CONCAT list "12abc [two;2] 12ab\nlockstep_add_run(NAME a.b EXPECT_DIGEST 12ab SET x)\n"
       "lockstep_add_run(CONFIG c\n NAME \"axb\" EXPECT_DIGEST 12ab EXPECT_STATE_HASH aaaa)\n")
file(WRITE ${WORK_DIR}/list.cmake "${list}")
accept(a.b fail -DDIGEST=12ab -DSTATE_HASH=aaaa)
set(ENV{LOCKSTEP_ACCEPT} 1)
accept(a.b fail -DDIGEST=12ab -DACCURACY_MIN=99)
accept(a.b fail -DDIGEST=12ab -DEXIT=1)
accept(a.b fail -DDIGEST=12ac)
accept(other fail -DDIGEST=12ab)  # which of them?
expect(fail -DDIGEST=12ab)
expect_list("${list}")
accept(axb pass -DDIGEST=12ab -DSTATE_HASH=aaaa -DACCURACY=98.52)
string(REPLACE "\"axb\" EXPECT_DIGEST 12ab EXPECT_STATE_HASH aaaa"
               "\"axb\" EXPECT_DIGEST 34cd EXPECT_STATE_HASH bb" list "${list}")
expect_list("${list}")
accept(axb pass -DDIGEST=34cd -DSTATE_HASH=bb)
accept(a.b pass -DDIGEST=12ab)
string(REPLACE "NAME a.b EXPECT_DIGEST 12ab" "NAME a.b EXPECT_DIGEST 34cd" list "${list}")
expect_list("${list}")
# In one place that several tests take it from: the second finds that it was written.
set(list "set(same 12ab)\nlockstep_add_run(NAME one EXPECT_DIGEST \${same})\n")
file(WRITE ${WORK_DIR}/list.cmake "${list}")
accept(one pass -DDIGEST=12ab)
accept(two pass -DDIGEST=12ab)
string(REPLACE "12ab" "34cd" list "${list}")
expect_list("${list}")
unset(ENV{LOCKSTEP_ACCEPT})

# A dashboard's measurements, as CTest itself takes them out of a test's lines.
execute_process(COMMAND ${CMAKE_COMMAND} -DLOG=${WORK_DIR}/run.log -P ${SCRIPT}
                        -- printf "${output}"
                OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
foreach(pair "accuracy, per cent=98.52" "steps per second=65.3" "arena bytes=1224768")
    string(REGEX MATCH "^(.*)=(.*)$" pair "${pair}")
    set(line "name=\"${CMAKE_MATCH_1}\">${CMAKE_MATCH_2}</CTestMeasurement>")
    string(FIND "${text}" "<CTestMeasurement type=\"numeric/double\" ${line}" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "the measurement ${line} is not in:\n${text}")
    endif()
endforeach()

# Arguments arrive whole, and the exit code counts.
foreach(argument "a b" "[3,3]" "{\"a\": [1, 2]}" "a$b" "back\\slash")
    execute_process(COMMAND ${CMAKE_COMMAND} -DLOG=${WORK_DIR}/run.log -DEXIT=3 -P ${SCRIPT}
                            -- sh -c "test \"$1\" = \"$2\" && exit 3" sh ${argument} ${argument}
                    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "${argument}: ended with ${result}:\n${text}")
    endif()
endforeach()
