package epoch

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestExecutor_EndWaitsForJobsOfQueuedActions ends the executor while a queued request to the
// keeper starts a job. The end waits for this job.
func TestExecutor_EndWaitsForJobsOfQueuedActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExecutor(Options{})
		end := x.begin(t.Context(), nil)
		launched, hold := make(chan struct{}), make(chan struct{})
		x.ledger.add(func(context.Context) {
			<-launched
			x.job("start", func(context.Context) { <-hold })
		})
		ended := make(chan struct{})
		go func() { defer close(ended); end() }()
		synctest.Wait()
		close(launched)
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the executor has ended before a job of it")
		default:
		}
		close(hold)
		<-ended
	})
}
