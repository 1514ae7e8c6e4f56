package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// leaseLabel and leaseOwner are the name and the value of the label on each Lease of this program.
const (
	leaseLabel = "app.kubernetes.io/managed-by"
	leaseOwner = "outrider-discoveryd"
)

// podNamespace is the file in which a pod finds the name of its namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// RenewLease implements registration.Store. It renews a Lease, or creates it if it does not exist.
func (s *EntryStore) RenewLease(ctx context.Context, instance string,
	duration time.Duration) error {
	client, err := s.leases()
	if err != nil {
		return err
	}
	now := metav1.NowMicro()
	seconds := int32(duration.Seconds() + 1)
	change, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now,
		"leaseDurationSeconds": seconds}})
	if err != nil {
		return err
	}
	err = s.leaseRequest(client.Patch(types.MergePatchType)).Name(instance).Body(change).Do(ctx).
		Error()
	if apierrors.IsNotFound(err) {
		err = s.leaseRequest(client.Post()).Body(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: instance,
				Labels: map[string]string{leaseLabel: leaseOwner}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &instance, AcquireTime: &now,
				RenewTime: &now, LeaseDurationSeconds: &seconds}}).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("cannot create a Lease: the namespace of the pod or kubeconfig "+
				"does not exist: %w", err)
		}
	}
	return s.failure(err)
}

// LeaseVersions implements registration.Store. Its values are the resourceVersions of the Leases.
func (s *EntryStore) LeaseVersions(ctx context.Context) (map[string]string, error) {
	client, err := s.leases()
	if err != nil {
		return nil, err
	}
	var list coordinationv1.LeaseList
	if err := s.leaseRequest(client.Get()).SpecificallyVersionedParams(
		&metav1.ListOptions{LabelSelector: leaseLabel + "=" + leaseOwner}, metav1.ParameterCodec,
		metav1.SchemeGroupVersion).Do(ctx).Into(&list); err != nil {
		return nil, s.failure(err)
	}
	all := make(map[string]string, len(list.Items))
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].ResourceVersion
	}
	return all, nil
}

// ReleaseLease implements registration.Store.
func (s *EntryStore) ReleaseLease(ctx context.Context, instance string) error {
	client, err := s.leases()
	if err != nil {
		return err
	}
	return ignoreGone(s.failure(s.leaseRequest(client.Delete()).Name(instance).Do(ctx).Error()))
}

func (s *EntryStore) leaseRequest(r *rest.Request) *rest.Request {
	s.lease.Lock()
	defer s.lease.Unlock()
	return r.Namespace(s.leaseNamespace).Resource("leases")
}

// leases returns the client for Leases. They are in the namespace of the pod, or of the
// kubeconfig's context, which must be the same for all servers.
func (s *EntryStore) leases() (rest.Interface, error) {
	client, err := s.connection.client(coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	s.lease.Lock()
	defer s.lease.Unlock()
	if s.leaseNamespace == "" {
		s.leaseNamespace, err = namespaceOf(s.connection.kubeconfig)
	}
	return client, err
}

// namespaceOf returns the namespace of a kubeconfig's context, or "default" if the context has
// none. If kubeconfig is "" (in-cluster), it returns the namespace of the pod.
func namespaceOf(kubeconfig string) (string, error) {
	if kubeconfig == "" {
		text, err := os.ReadFile(podNamespace)
		return strings.TrimSpace(string(text)), err
	}
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, nil).Namespace()
	return namespace, err
}
