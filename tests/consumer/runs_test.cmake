# Tests RunLockstep.cmake, which judges training runs, with commands whose output is known: what is
# as expected passes, everything else fails.
#   cmake -DSCRIPT= -DWORK_DIR= -P runs_test.cmake
cmake_minimum_required(VERSION 3.25)

file(MAKE_DIRECTORY ${WORK_DIR})
set(output "epoch 1\\ndigest 00ff\\nstate_hash aa\\ntest_accuracy 97.5%%\\nthe digest 99\\n")
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

# Arguments arrive whole, and the exit code counts.
foreach(argument "a b" "[3,3]" "{\"a\": [1, 2]}" "a$b" "back\\slash")
    execute_process(COMMAND ${CMAKE_COMMAND} -DLOG=${WORK_DIR}/run.log -DEXIT=3 -P ${SCRIPT}
                            -- sh -c "test \"$1\" = \"$2\" && exit 3" sh ${argument} ${argument}
                    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "${argument}: ended with ${result}:\n${text}")
    endif()
endforeach()
