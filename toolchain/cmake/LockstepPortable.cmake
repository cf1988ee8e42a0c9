# The target `portable`: a folder that can be copied to another Linux machine of this architecture
# with a C library no older than this one's, and run there. Third-party libraries are linked in; a
# GPU needs its driver only.
set(LOCKSTEP_PORTABLE_DIR ${PROJECT_BINARY_DIR}/portable)
file(GLOB ready CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/configs/*.json)
file(GLOB published CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/apps/configs/published/*.json)
add_custom_target(portable
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${LOCKSTEP_PORTABLE_DIR}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${LOCKSTEP_PORTABLE_DIR}/configs/published
    COMMAND ${CMAKE_COMMAND} -E copy ${ready} ${LOCKSTEP_PORTABLE_DIR}/configs
    COMMAND ${CMAKE_COMMAND} -E copy ${published} ${LOCKSTEP_PORTABLE_DIR}/configs/published
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:lockstep_program>
            ${PROJECT_SOURCE_DIR}/LICENSE ${LOCKSTEP_PORTABLE_DIR}
    DEPENDS lockstep_program VERBATIM)
if(LOCKSTEP_TESTS)
    enable_testing()
    add_test(NAME portable
        COMMAND sh ${PROJECT_SOURCE_DIR}/tests/cuda/portable_test.sh ${LOCKSTEP_PORTABLE_DIR}
                ${PROJECT_BINARY_DIR}/portable_test $<BOOL:${LOCKSTEP_HAVE_CUDA}>)
    set_tests_properties(portable PROPERTIES TIMEOUT 120 LABELS portable)
endif()
