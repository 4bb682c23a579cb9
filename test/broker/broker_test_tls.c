#include "broker_test.h"
void test_certificates(void){}
