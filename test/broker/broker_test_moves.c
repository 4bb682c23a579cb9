#include "broker_test.h"
void test_moves(void){}
