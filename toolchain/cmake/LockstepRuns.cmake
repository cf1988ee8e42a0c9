# lockstep_add_run(): a training run as a CTest test.
#
#   lockstep_add_run(NAME mnist_small CONFIG mnist.json
#       REPLICAS 4                       # passed on as --replicas
#       SET steps=100 data.dir=/data     # each passed on as --set
#       ARGUMENTS --seal                 # passed on as they are
#       EXPECT_DIGEST 1f0c...            # 64 hex digits: the same weights, bit for bit
#       EXPECT_STATE_HASH 93ab...        # optimizer slots and step as well
#       EXPECT_ACCURACY 98.52            # the same text
#       EXPECT_ACCURACY_MIN 98           # at least
#       EXPECT_EXIT 0                    # the default; 78 for a configuration that must be refused
#       TIMEOUT 600 LABELS run)          # the defaults
#
# A dashboard gets accuracy, steps/s and bytes of the arena as measurements. After a change that is
# meant, LOCKSTEP_ACCEPT=1 ctest ... writes the digests and state hashes that were found into the
# file that calls lockstep_add_run: into the call itself, or where alone the others stand.
#
# The run lives in <build>/runs/NAME and starts afresh each time; its output stays beside it in
# NAME.log. CONFIG is a file, relative to the calling folder, or the name of a ready configuration.

function(lockstep_add_run)
    set(expectations DIGEST STATE_HASH ACCURACY ACCURACY_MIN EXIT)
    list(TRANSFORM expectations PREPEND EXPECT_ OUTPUT_VARIABLE keywords)
    cmake_parse_arguments(PARSE_ARGV 0 run "" "NAME;CONFIG;REPLICAS;TIMEOUT;${keywords}"
                          "SET;ARGUMENTS;LABELS")
    if(run_UNPARSED_ARGUMENTS OR run_KEYWORDS_MISSING_VALUES)
        message(FATAL_ERROR "lockstep_add_run: unknown argument or one without value: "
                "${run_UNPARSED_ARGUMENTS} ${run_KEYWORDS_MISSING_VALUES}")
    elseif(NOT run_NAME OR NOT run_CONFIG)
        message(FATAL_ERROR "lockstep_add_run: NAME and CONFIG are required")
    elseif(NOT TARGET lockstep::program)
        message(FATAL_ERROR "lockstep_add_run: there is no target lockstep::program to run")
    endif()
    foreach(kind DIGEST STATE_HASH)
        set(expected "${run_EXPECT_${kind}}")
        string(LENGTH "${expected}" digits)
        if(DEFINED run_EXPECT_${kind} AND NOT (digits EQUAL 64 AND expected MATCHES "^[0-9a-f]+$"))
            string(TOLOWER ${kind} line)
            message(FATAL_ERROR "lockstep_add_run: EXPECT_${kind} ${expected}, wanted the 64 hex "
                    "digits of the line \"${line} ...\"; of a run whose digits are not known yet "
                    "64 zeros, and then LOCKSTEP_ACCEPT=1 ctest")
        endif()
    endforeach()
    get_filename_component(config ${run_CONFIG} ABSOLUTE)
    if(NOT EXISTS ${config} AND NOT run_CONFIG MATCHES "[/.]")
        set(config ${run_CONFIG})  # a ready one, by its name
    endif()
    set(run_dir ${CMAKE_BINARY_DIR}/runs/${run_NAME})
    set(command $<TARGET_FILE:lockstep::program> train ${config} --run-dir ${run_dir} --fresh)
    if(DEFINED run_REPLICAS)
        list(APPEND command --replicas ${run_REPLICAS})
    endif()
    foreach(assignment IN LISTS run_SET)
        list(APPEND command --set "${assignment}")
    endforeach()
    list(APPEND command ${run_ARGUMENTS})
    set(definitions -DLOG=${run_dir}.log -DLIST=${CMAKE_CURRENT_LIST_FILE}
        -DNAME=${run_NAME})
    foreach(expectation IN LISTS expectations)
        if(DEFINED run_EXPECT_${expectation})
            list(APPEND definitions -D${expectation}=${run_EXPECT_${expectation}})
        endif()
    endforeach()
    add_test(NAME ${run_NAME}
             COMMAND ${CMAKE_COMMAND} ${definitions}
                     -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/RunLockstep.cmake -- ${command})
    if(NOT DEFINED run_TIMEOUT)
        set(run_TIMEOUT 600)
    endif()
    if(NOT DEFINED run_LABELS)
        set(run_LABELS run)
    endif()
    set_tests_properties(${run_NAME} PROPERTIES TIMEOUT ${run_TIMEOUT} LABELS "${run_LABELS}")
endfunction()
