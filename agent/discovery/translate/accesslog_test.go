package translate

import "testing"

// An EnvoyFilter of a user may patch the access log of a file by its index.
func TestLoggers_FailuresAreLast(t *testing.T) {
	logs, err := loggers(AccessLog{File: "/dev/stdout", Failures: "xds-grpc"}, ofRequests)
	if err != nil || len(logs) != 2 || logs[0].GetFilter() != nil ||
		len(logs[1].GetFilter().GetResponseFlagFilter().GetFlags()) == 0 {
		t.Errorf("%v %v", logs, err)
	}
	for _, log := range logs {
		if err := log.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	if logs, err := loggers(AccessLog{File: "/dev/stdout"}, ofRequests); err != nil || len(logs) != 1 {
		t.Errorf("without failures: %v %v", logs, err)
	}
}
