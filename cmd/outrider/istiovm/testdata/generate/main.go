// Command generate makes the files of a VM in a directory with workloadgroup.yaml and
// meshconfig.yaml, by istioctl's own "workload entry configure" and a fake API server. To build it,
// copy go.mod and go.sum of scripts/parts/istiod beside it and run go build -mod=mod. Then, as for
// web and bare here:
//
//	generate web root.pem --autoregister --internalIP 10.0.0.7 --ingressIP 203.0.113.10
//	generate bare root.pem
package main

import (
	"context"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/testing"

	"istio.io/istio/istioctl/pkg/cli"
	"istio.io/istio/istioctl/pkg/workload"
)

func main() {
	directory := os.Args[1]
	ctx := cli.NewFakeContext(&cli.NewFakeContextOption{IstioNamespace: "istio-system"})
	client, err := ctx.CLIClientWithRevision(ctx.RevisionOrDefault(""))
	must(err)
	configMap := func(namespace, name, key, file string) {
		text, err := os.ReadFile(file)
		must(err)
		_, err = client.Kube().CoreV1().ConfigMaps(namespace).Create(context.Background(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
				Data: map[string]string{key: string(text)}}, metav1.CreateOptions{})
		must(err)
	}
	configMap("vm", "istio-ca-root-cert", "root-cert.pem", os.Args[2])
	configMap("istio-system", "istio", "mesh", filepath.Join(directory, "meshconfig.yaml"))
	client.Kube().(*fake.Clientset).PrependReactor("create", "serviceaccounts",
		func(action testing.Action) (bool, runtime.Object, error) {
			return action.GetSubresource() == "token", &authenticationv1.TokenRequest{
				Status: authenticationv1.TokenRequestStatus{Token: "a.e30.of-web"}}, nil
		})
	configure := workload.Cmd(ctx)
	configure.SetArgs(append([]string{"entry", "configure", "--clusterID", "Kubernetes",
		"-o", directory, "-f", filepath.Join(directory, "workloadgroup.yaml")}, os.Args[3:]...))
	must(configure.Execute())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
